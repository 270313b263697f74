"""Row operations: softmax, log_softmax, logsumexp, cross entropy, and softmax of attention scores."""
