"""Nyström attention in Pallas, for TPUs: each pass reads the tokens once and keeps none of them."""
