"""Attention, as products around a softmax."""
