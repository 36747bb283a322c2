"""Something that happens in the middle of a training."""


class Accident:
    """Watches a training, and does something at a step."""

    def __init__(self, at, act):
        self.at, self.act, self.steps, self.notes = at, act, 0, []

    def track(self, items, count):
        return items

    def introduce(self, text):
        pass

    def begin(self, epochs, steps, done):
        self.steps = done

    def step(self, loss):
        self.steps += 1
        if self.steps == self.at:
            self.act()

    def epoch(self, record):
        pass

    def note(self, text):
        self.notes.append(text)

    def end(self):
        pass
