"""shiftcal inside other libraries, a module for each: torchvision, torchmetrics, lightning, transformers, accelerate.

Each is imported by its own name and needs the extra of that name.
"""
