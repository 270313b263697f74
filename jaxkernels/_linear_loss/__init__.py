"""Cross entropy of a linear layer's logits, which are never kept as a whole."""
