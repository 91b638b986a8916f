"""pdtop: terminal dashboard and operations console for SGLang prefill/decode clusters."""

__version__ = "0.1.0"
