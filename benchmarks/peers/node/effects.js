// What the jobs do, as benchmarks/apps/effects.py does, and a producer's command line.

const fs = require("node:fs");

const written = fs.openSync("written", "a");
const times = fs.openSync("times", "a");
const gate = Number(process.env.BENCH_GATE || 0);
const waits = Number(process.env.BENCH_WAITS || 0) * 1000;
const computes = Number(process.env.BENCH_COMPUTES || 0) * 1e6;
const now = () => (performance.timeOrigin + performance.now()) / 1000;
let started = 0;
let waited = !gate;

function passGate() {
  waited = true;
  const file = fs.openSync("gate", "a");
  fs.writeSync(file, ".");
  const cell = new Int32Array(new SharedArrayBuffer(4));
  while (fs.fstatSync(file).size < gate) Atomics.wait(cell, 0, 0, 1);
  fs.closeSync(file);
}

function append() {
  if (!waited) passGate();
  fs.writeSync(written, ".");
}

// A promise of it where the job is to wait.
exports.append = () => {
  if (!waits) return append();
  return new Promise((wake) => setTimeout(wake, waits)).then(append);
};

// Processor time, as everybody's: of a machine that is busy it takes longer.
function compute() {
  const began = process.cpuUsage();
  for (;;) {
    const { user, system } = process.cpuUsage(began);
    if (user + system >= computes) return;
  }
}

exports.since = (moment) => {
  const late = (now() - moment).toFixed(6);
  if (!computes) fs.writeSync(times, `${late}\n`);
  else if (++started % 100) fs.writeSync(times, `${late} ${moment.toFixed(6)}\n`);
  else {
    fs.writeSync(times, `- ${moment.toFixed(6)}\n`);
    compute();
  }
  append();
};

// Dispatches as `many COUNT`, `spaced COUNT SEED` or `paced COUNT EACH_SECOND` says, and prints how
// many a second.
exports.produce = async (append, since) => {
  const [, , what, number, eachSecond] = process.argv;
  const count = Number(number);
  await append();
  let rate = 0;
  if (what === "many") {
    const began = process.hrtime.bigint();
    for (let done = 0; done < count; done++) await append();
    rate = count / (Number(process.hrtime.bigint() - began) / 1e9);
  } else if (what === "spaced") {
    for (let done = 0; done < count; done++) {
      await new Promise((wake) => setTimeout(wake, 100 + Math.random() * 200));
      await since(now());
    }
  } else if (what === "paced") {
    const began = performance.now();
    for (let done = 0; done < count; done++) {
      const left = began + (done * 1000) / Number(eachSecond) - performance.now();
      if (left > 0) await new Promise((wake) => setTimeout(wake, left));
      await since(now());
    }
  }
  console.log(JSON.stringify(rate));
};

// The packages of this peer are beside the node that runs it.
exports.packages = require("node:module").createRequire(process.execPath);
