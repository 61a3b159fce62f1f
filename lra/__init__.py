"""Long Range Arena: tasks, models, training, figures and reports."""
