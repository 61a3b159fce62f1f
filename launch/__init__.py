"""Launching of programs on several hosts, and with huge pages."""
