"""Attention: cuDNN's flash attention, or our softmax between two products."""
