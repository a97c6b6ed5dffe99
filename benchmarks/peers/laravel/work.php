<?php
// What `queue:work` runs: Laravel's own worker, its loop for ever.

require __DIR__.'/queue.php';

use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

final class Reports implements ExceptionHandler
{
    public function report(Throwable $e): void
    {
        fwrite(STDERR, $e."\n");
        exit(1);
    }

    public function shouldReport(Throwable $e): bool
    {
        return true;
    }

    public function render($request, Throwable $e): void
    {
    }

    public function renderForConsole($output, Throwable $e): void
    {
    }
}

$queues = queues();
$worker = new Worker($queues->getQueueManager(), $queues->getContainer()['events'], new Reports, fn () => false);
$worker->daemon(CONNECTION, 'default', new WorkerOptions('default'));
