"""Row operations: softmax, log-softmax, logsumexp, the softmax of attention scores."""
