// graphile-worker: `tables`, `work`, or what effects.js produces.

const { append, since, produce, packages } = require("./effects.js");
const { Logger, makeWorkerUtils, run, runMigrations } = packages("graphile-worker");

const connectionString = process.env.BENCH_SQL;
const many = Number(process.env.BENCH_MANY);
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const together = process.env.BENCH_TOGETHER
  ? { localQueue: { size: 500 }, completeJobBatchDelay: 0 }
  : {};

async function main() {
  const [, , what] = process.argv;
  if (what === "tables") {
    await runMigrations({ connectionString, logger });
  } else if (what === "work") {
    const runner = await run({
      logger,
      preset: {
        worker: { connectionString, concurrentJobs: many, maxPoolSize: many + 2, ...together },
      },
      taskList: { append: async () => append(), since: async (payload) => since(payload.moment) },
    });
    await runner.promise;
  } else {
    const utils = await makeWorkerUtils({ connectionString, logger });
    await produce(
      () => utils.addJob("append", {}),
      (moment) => utils.addJob("since", { moment }),
    );
    await utils.release();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
