"""Attention: cuDNN's flash attention, our flash kernels, or our softmax between two products."""
