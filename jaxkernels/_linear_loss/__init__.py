"""Cross entropy of a linear layer, which never stores the logits of all rows."""
