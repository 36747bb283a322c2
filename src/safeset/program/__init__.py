"""What a network is to every proof: plain layers in order, what they compute by ATen, and what they are exactly.

Made once from a user's modules; everything that is proved is proved of this.
"""
