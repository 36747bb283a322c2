"""From a recipe to a certified model: recipes, the step, the loop, checkpoints."""
