"""The command line: what all commands share, config files, and what the training programs share."""
