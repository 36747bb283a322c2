"""Sets that hold the truth, also under attack: scores, thresholds, and `Coverage`, calibrated on held-out points.

*Certified* sets (`certificates`) say what a network can be made to answer; these say how often the true class is in.
"""
