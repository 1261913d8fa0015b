"""The accelerator vendors; the only place that names ``torch.cuda`` or ``torch.xpu``."""
