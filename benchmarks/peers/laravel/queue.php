<?php
// Laravel 8's queue on Redis with phpredis, booted without an application around it, and its jobs.

require 'Illuminate/autoload.php';

use Illuminate\Config\Repository;
use Illuminate\Container\Container;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Redis\RedisManager;

final class Jobs
{
    private static $written;
    private static $times;

    public function append($job, array $data): void
    {
        self::$written ??= fopen('written', 'a');
        fwrite(self::$written, '.');
        $job->delete();
    }

    public function since($job, array $data): void
    {
        self::$times ??= fopen('times', 'a');
        fwrite(self::$times, sprintf("%.6f\n", microtime(true) - $data['moment']));
        $this->append($job, $data);
    }
}

function queues(): Manager
{
    $address = parse_url(getenv('BENCH_REDIS'));
    $container = new Container;
    Container::setInstance($container);
    $container->instance('config', new Repository(['queue' => ['default' => 'redis', 'connections' => []]]));
    $container->instance('events', new Dispatcher($container));
    $container->instance('redis', new RedisManager($container, 'phpredis', [
        'default' => [
            'host' => $address['host'],
            'port' => $address['port'],
            'database' => (int) trim($address['path'] ?? '0', '/'),
        ],
    ]));
    $queues = new Manager($container);
    $queues->addConnection([
        'driver' => 'redis',
        'connection' => 'default',
        'queue' => 'default',
        'retry_after' => 60,
        'block_for' => 5,
    ], 'redis');

    return $queues;
}
