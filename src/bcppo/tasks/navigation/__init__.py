"""The Safety-Gymnasium 1.0.0 point-robot tasks Goal, Button and Push, levels 0 to 2, rewritten for speed on MuJoCo."""

from bcppo.tasks.navigation.levels import LEVELS, Level

__all__ = ["LEVELS", "Level"]
