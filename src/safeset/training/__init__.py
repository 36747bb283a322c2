"""From a recipe and points to a trained net: the step, the loop, checkpoints, the run's directory.

What is special to CUDA is in `gpu/`.
"""
