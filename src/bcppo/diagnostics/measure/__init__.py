"""The halves that make rows: run folder → rows. They may import torch and algorithms."""
