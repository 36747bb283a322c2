// Images as numbers: the canvas only shows them. What is certified is never read back from a canvas.

// Their L2 norm. An image of 224 × 224 pixels has more numbers than a function can have arguments, as of Math.hypot.
export const lengthOf = (numbers) => Math.sqrt(numbers.reduce((sum, number) => sum + number * number, 0));

// What part of a change fits into a ball: all of one that is none, as of an attack where ε is 0.
export const shareWithin = (epsilon, norm) => (norm > 0 ? Math.min(1, (0.999 * epsilon) / norm) : 1);

export class Picture {
  constructor([channels, height, width], low, high) {
    Object.assign(this, { channels, height, width, low, high, size: height * width });
  }

  // Numbers as pixels; those below `low` are black, above `high` white.
  draw(canvas, numbers, low = this.low, high = this.high) {
    canvas.width = this.width;
    canvas.height = this.height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(this.width, this.height);
    for (let pixel = 0; pixel < this.size; pixel += 1) {
      for (let channel = 0; channel < 3; channel += 1) {
        const number = numbers[(this.channels === 3 ? channel : 0) * this.size + pixel];
        image.data[4 * pixel + channel] = (255 * (number - low)) / (high - low);
      }
      image.data[4 * pixel + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  }

  // The change: grey where there is none, as strong as it can be shown.
  drawDifference(canvas, original, changed) {
    const difference = changed.map((number, place) => number - original[place]);
    const most = difference.reduce((found, number) => Math.max(found, Math.abs(number)), 0) || 1;
    this.draw(canvas, difference, -most, most);
  }

  // Mix a colour into a square of the brush's side around a pixel.
  paint(numbers, column, row, side, colour, strength) {
    const from = Math.floor((side - 1) / 2);
    for (let y = row - from; y < row - from + side; y += 1) {
      for (let x = column - from; x < column - from + side; x += 1) {
        if (x < 0 || y < 0 || x >= this.width || y >= this.height) continue;
        for (let channel = 0; channel < this.channels; channel += 1) {
          const place = channel * this.size + y * this.width + x;
          const wanted = this.low + colour[channel] * (this.high - this.low);
          numbers[place] += strength * (wanted - numbers[place]);
        }
      }
    }
  }

  // A colour as the channels have it: grey by its brightness.
  colour(text) {
    const parts = [1, 3, 5].map((start) => parseInt(text.slice(start, start + 2), 16) / 255);
    return this.channels === 3 ? parts : [0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]];
  }
}

// Let a canvas be painted on, by pointer and by keys: `paint(places)` does it, `moved(column, row)` says where the keys are.
export function startPainting(canvas, picture, paint, moved) {
  const clamp = (number, count) => Math.min(Math.max(number, 0), count - 1);
  let place = [picture.width >> 1, picture.height >> 1];
  let last = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (number, start, length, count) => clamp(Math.floor(((number - start) / length) * count), count);
    return [share(event.clientX, box.left, box.width, picture.width), share(event.clientY, box.top, box.height, picture.height)];
  };
  // Pixels after the last one up to the next: a fast stroke leaves no holes, a pixel is painted once while one is on it.
  const stroke = ([column, row]) => {
    const [x, y] = last ?? [column, row];
    const count = last === null ? 1 : Math.max(Math.abs(column - x), Math.abs(row - y));
    const between = (from, to, step) => Math.round(from + ((to - from) * step) / count);
    const places = Array.from({ length: count }, (_, step) => [between(x, column, step + 1), between(y, row, step + 1)]);
    last = [column, row];
    if (places.length) paint(places);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    stroke(at(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) stroke(at(event));
  });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === " " || event.key === "Enter") paint([place]);
    else if (event.key in steps) {
      const [x, y] = steps[event.key];
      place = [clamp(place[0] + x, picture.width), clamp(place[1] + y, picture.height)];
    } else return;
    moved(...place);
    event.preventDefault();
  });
  canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) moved(...place); });
}
