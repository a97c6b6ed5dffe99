<?php

/*
 * The PHP application's own code: what its queue runs, and what it binds to which name.
 */

namespace App\Handlers {

    use Illuminate\Contracts\Queue\Job;
    use RuntimeException;

    /**
     * A string job: notes what it gets and does what its data says.
     *
     * "sleep" is in seconds; it raises in its first "php_fails" attempts; "push" is a job to push then.
     */
    class Import
    {
        public function handle(Job $job, $data)
        {
            note('start', $this->about($job, $data));
            usleep((int) (($data['sleep'] ?? 0) * 1e6));
            if ($job->attempts() <= ($data['php_fails'] ?? 0)) {
                throw new RuntimeException("PHP does not like attempt {$job->attempts()}");
            }
            if (isset($data['push'])) {
                $GLOBALS['app']['queue']->push($data['push']);
            }
            note('end', $this->about($job, $data));
            $job->delete();
        }

        public function fire(Job $job, $data)
        {
            $this->handle($job, $data);
        }

        public function failed($data, $error, $uuid)
        {
            note('failed', ['uuid' => $uuid, 'data' => $data, 'error' => $error->getMessage()]);
        }

        private function about(Job $job, $data): array
        {
            $payload = $job->payload();

            return [
                'name' => $job->getName(), 'shown' => $payload['displayName'] ?? null,
                'uuid' => $job->uuid(), 'id' => $job->getJobId(), 'queue' => $job->getQueue(),
                'attempts' => $job->attempts(), 'tries' => $job->maxTries(),
                'max_exceptions' => $job->maxExceptions(), 'timeout' => $job->timeout(),
                'retry_until' => $job->retryUntil(), 'tags' => $payload['tags'] ?? null,
                'traceparent' => $payload['traceparent'] ?? null, 'tracestate' => $payload['tracestate'] ?? null,
                'data' => $data,
            ];
        }
    }
}

namespace App\Jobs {

    use Illuminate\Bus\Queueable;
    use Illuminate\Contracts\Queue\ShouldQueue;
    use Illuminate\Queue\InteractsWithQueue;

    /** An ordinary Laravel job: PHP serializes it into its payload. */
    class SendReport implements ShouldQueue
    {
        use InteractsWithQueue, Queueable;

        public $tries = 3;

        public function __construct(public int $id)
        {
        }

        public function handle()
        {
            note('end', ['name' => static::class, 'data' => ['id' => $this->id]]);
        }
    }
}

namespace {
    // Names that both sides know: Python has jobs of these names too.
    $app->bind('app.jobs.Shared', App\Handlers\Import::class);
}
