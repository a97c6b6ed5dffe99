// What the jobs do, as benchmarks/apps/effects.py does, and a producer's command line.

const fs = require("node:fs");

const written = fs.openSync("written", "a");
const times = fs.openSync("times", "a");
const gate = Number(process.env.BENCH_GATE || 0);
let waited = !gate;

function passGate() {
  waited = true;
  const file = fs.openSync("gate", "a");
  fs.writeSync(file, ".");
  const cell = new Int32Array(new SharedArrayBuffer(4));
  while (fs.fstatSync(file).size < gate) Atomics.wait(cell, 0, 0, 1);
  fs.closeSync(file);
}

exports.append = () => {
  if (!waited) passGate();
  fs.writeSync(written, ".");
};

exports.since = (moment) => {
  fs.writeSync(times, `${(Date.now() / 1000 - moment).toFixed(6)}\n`);
  exports.append();
};

// Dispatches as `many COUNT` or `spaced COUNT SEED` says, and prints how many a second.
exports.produce = async (append, since) => {
  const [, , what, number] = process.argv;
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
      await since(Date.now() / 1000);
    }
  }
  console.log(JSON.stringify(rate));
};

// The packages of this peer are beside the node that runs it.
exports.packages = require("node:module").createRequire(process.execPath);
