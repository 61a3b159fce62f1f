"""The Long Range Arena: its tasks, its models and the command that trains them."""
