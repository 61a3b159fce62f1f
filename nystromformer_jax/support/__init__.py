"""What is not mathematics: files, names, plug-ins, types of arguments."""
