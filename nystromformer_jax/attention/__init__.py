"""Attention as functions of query, key and value, and their stages."""
