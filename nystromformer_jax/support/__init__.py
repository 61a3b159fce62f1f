"""Helpers of the library: files, names, plug-ins, and values of options."""
