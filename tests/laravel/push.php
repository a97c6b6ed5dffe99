<?php

/*
 * Pushes with Laravel's own queue, and prints the ids as a JSON list:
 *
 *     php push.php OPTIONS '[["push", "app.jobs.SendWelcome", {"user_id": 7}, "emails"], ...]'
 *
 * A step is ["push", job, data, queue], ["later", seconds, job, data, queue],
 * ["bulk", [job, ...], data, queue], ["raw", payload, queue], ["file", path of a payload, queue], ["report", id, queue] (a serialized
 * command) or ["size", queue].
 */

require __DIR__.'/boot.php';

use App\Jobs\SendReport;

$connection = $app['queue']->connection($driver);
$answers = [];
foreach (json_decode($argv[2], true, 512, JSON_THROW_ON_ERROR) as $step) {
    $verb = array_shift($step);
    $answer = match ($verb) {
        'push' => $connection->push(...$step),
        'later' => $connection->later(...$step),
        'bulk' => $connection->bulk(...$step),
        'raw' => $connection->pushRaw(...$step),
        'file' => $connection->pushRaw(file_get_contents($step[0]), $step[1]),
        'report' => $connection->push(new SendReport($step[0]), '', $step[1]),
        'size' => $connection->size(...$step),
    };
    $answers[] = $answer instanceof Pheanstalk\Job ? $answer->getId() : $answer;
}
echo json_encode($answers), "\n";
