"""Attention: flash attention by cuDNN or our kernels, or our softmax between two products."""
