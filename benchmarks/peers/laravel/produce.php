<?php
// Dispatches Laravel's jobs: `php produce.php many 5000`, as benchmarks/apps/producing.py does.

require __DIR__.'/queue.php';

$queue = queues()->getConnection(CONNECTION);
$append = fn () => $queue->push('Jobs@append', []);
[, $what, $count] = $argv;
$append();
$rate = 0;
if ($what === 'many') {
    $began = microtime(true);
    for ($number = 0; $number < $count; $number++) {
        $append();
    }
    $rate = $count / max(1e-9, microtime(true) - $began);
} elseif ($what === 'spaced') {
    mt_srand((int) $argv[3]);
    for ($number = 0; $number < $count; $number++) {
        usleep(mt_rand(100_000, 300_000));
        $queue->push('Jobs@since', ['moment' => microtime(true)]);
    }
}
echo json_encode($rate), "\n";
