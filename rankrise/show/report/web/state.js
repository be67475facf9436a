// What the reader has chosen. Parts of the page watch the choices that they show.

export const state = {};
const listeners = [];

/** Call `update` now and whenever one of the named choices changes. */
export function watch(names, update) {
  listeners.push([names, update]);
  update();
}

export function choose(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  for (const [names, update] of listeners) {
    if (names.some((name) => changed.includes(name))) update();
  }
}

/** A range of x that several plots share; null is everything. */
export class Zoom {
  range = null;
  full = [0, 1];
  followers = [];

  set(range) {
    const [low, high] = this.full;
    const clipped = range && [Math.max(low, range[0]), Math.min(high, range[1])];
    if (clipped && clipped[1] - clipped[0] < 1e-6 * (high - low)) return;
    const whole = !clipped || clipped[1] - clipped[0] >= 0.999 * (high - low);
    this.range = whole ? null : clipped;
    this.followers.forEach((follow) => follow());
  }

  /** Zoom by a factor around x, which stays where it is. */
  by(factor, x) {
    const [low, high] = this.range ?? this.full;
    const centre = Math.min(high, Math.max(low, x ?? (low + high) / 2));
    this.set([centre - (centre - low) / factor, centre + (high - centre) / factor]);
  }

  /** Move by a share of the width in view, as far as there is room. */
  pan(share) {
    if (!this.range) return;
    const [low, high] = this.range;
    const room = share > 0 ? this.full[1] - high : low - this.full[0];
    const move = Math.sign(share) * Math.min(Math.abs(share) * (high - low), room);
    this.set([low + move, high + move]);
  }
}
