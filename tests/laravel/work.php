<?php

/*
 * Laravel's own queue worker, as `artisan queue:work` runs it:
 *
 *     php work.php '{"port": ..., "work": "default,emails", "tries": 3, "stop_when_empty": true}'
 *
 * Options besides those of boot.php: "work" (queues), "backoff", "timeout", "sleep", "tries",
 * "stop_when_empty", "max_jobs", and "once" for a single job.
 */

require __DIR__.'/boot.php';

use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\Events\Looping;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

$handler = new class implements ExceptionHandler {
    public function report(Throwable $e)
    {
        fwrite(STDERR, get_class($e).': '.$e->getMessage()."\n");
    }

    public function shouldReport(Throwable $e)
    {
        return true;
    }

    public function render($request, Throwable $e)
    {
    }

    public function renderForConsole($output, Throwable $e)
    {
    }
};

$app['events']->listen(JobFailed::class, function (JobFailed $event) use ($app) {
    if ($app->bound('queue.failer')) {
        $app['queue.failer']->log(
            $event->connectionName, $event->job->getQueue(), $event->job->getRawBody(), $event->exception
        );
    }
    note('recorded', [
        'uuid' => $event->job->uuid(), 'raw' => $event->job->getRawBody(),
        'error' => $event->exception->getMessage(),
    ]);
});
$looped = false;
$app['events']->listen(Looping::class, function () use (&$looped) {
    if (! $looped) {
        note('looping', []);
        $looped = true;
    }
});

$worker = new Worker($app['queue'], $app['events'], $handler, fn () => false);
$worker->setCache($app['cache.store']);
$options = new WorkerOptions(
    'default', $given['backoff'] ?? 0, 128, $given['timeout'] ?? 60, $given['sleep'] ?? 0.02,
    $given['tries'] ?? 1, false, $given['stop_when_empty'] ?? false, $given['max_jobs'] ?? 0,
);
$queues = $given['work'] ?? 'default';
if ($given['once'] ?? false) {
    $worker->runNextJob($driver, $queues, $options);
} else {
    exit($worker->daemon($driver, $queues, $options));
}
