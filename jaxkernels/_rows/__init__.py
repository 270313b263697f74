"""Row operations: softmax, log-softmax, the softmax of attention scores."""
