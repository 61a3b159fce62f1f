"""Values only: one file a task, and what they share."""
