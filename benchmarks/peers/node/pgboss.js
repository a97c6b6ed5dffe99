// pg-boss: `tables`, `work`, or what effects.js produces. Its queue wakes its workers by NOTIFY.

const { append, since, produce, packages } = require("./effects.js");
const { PgBoss } = packages("pg-boss");

const many = Number(process.env.BENCH_MANY);
const together = Boolean(process.env.BENCH_TOGETHER);

function run(data) {
  if (data && data.moment) since(data.moment);
  else append();
}

// One by one: its own loop would sleep after each batch of one, two seconds without NOTIFY.
async function fetchAll(boss) {
  for (;;) {
    const jobs = await boss.fetch("bench");
    if (!jobs.length) return;
    run(jobs[0].data);
    await boss.complete("bench", jobs[0].id);
  }
}

async function main() {
  const [, , what] = process.argv;
  const works = what === "work";
  const boss = new PgBoss({
    connectionString: process.env.BENCH_SQL,
    max: together ? 4 : many + 2,
    useListenNotify: works,
    supervise: works,
    migrate: what === "tables",
    schedule: false,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  if (what === "tables") {
    await boss.createQueue("bench", { notify: true });
  } else if (works) {
    if (!together) await Promise.all(Array.from({ length: many }, () => fetchAll(boss)));
    const options = together ? { batchSize: many, burstWhenBatchFull: true } : {};
    await boss.work("bench", options, async (jobs) => {
      for (const job of jobs) run(job.data);
    });
    return;
  } else {
    await produce(
      () => boss.send("bench", {}),
      (moment) => boss.send("bench", { moment }),
    );
  }
  await boss.stop({ graceful: false });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
