"""Config files of the runners, one per task."""
