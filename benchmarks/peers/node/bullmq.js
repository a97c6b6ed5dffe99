// BullMQ on Redis, or on PostgreSQL where BENCH_SQL says where: `tables`, `work`, or what effects.js
// produces. What is done is removed.

const { append, since, produce, packages } = require("./effects.js");
const bullmq = packages("bullmq");

const sql = process.env.BENCH_SQL;
const many = Number(process.env.BENCH_MANY);

function options() {
  if (!sql) {
    const { hostname, port, pathname } = new URL(process.env.BENCH_REDIS);
    const connection = {
      host: hostname,
      port: Number(port),
      db: Number(pathname.slice(1)),
      maxRetriesPerRequest: null,
    };
    return [{ connection }];
  }
  const connection = { connectionString: sql, max: Math.min(20, many + 2), migrate: true };
  return [{ connection }, bullmq.createPostgresBackend];
}

async function main() {
  const [, , what] = process.argv;
  const [connected, ...backend] = options();
  if (what === "work") {
    const run = async (job) => (job.name === "append" ? append() : since(job.data.moment));
    const worker = new bullmq.Worker(
      "bench",
      run,
      { ...connected, concurrency: many, removeOnComplete: { count: 0 } },
      ...backend,
    );
    worker.on("error", (error) => console.error(error));
    return;
  }
  const queue = new bullmq.Queue("bench", connected, ...backend);
  await queue.waitUntilReady();
  if (what !== "tables") {
    await produce(
      () => queue.add("append", {}, { removeOnComplete: true }),
      (moment) => queue.add("since", { moment }, { removeOnComplete: true }),
    );
  }
  await queue.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
