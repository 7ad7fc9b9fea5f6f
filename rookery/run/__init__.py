"""Running: the Trainer, `train`, `load`, and what a run leaves behind."""
