<?php
// Laravel 8's queue, booted without an application around it, and its jobs: on Redis with phpredis,
// or on beanstalkd with Pheanstalk where BENCH_BEANSTALKD says host and port.

require 'Illuminate/autoload.php';

define('CONNECTION', getenv('BENCH_BEANSTALKD') ? 'beanstalkd' : 'redis');
if (CONNECTION === 'beanstalkd') {
    require 'Pheanstalk/autoload.php';
}

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
        if ($seconds = getenv('BENCH_SLEEPS')) {
            sleep((int) $seconds);
        }
        $job->delete();
    }

    public function since($job, array $data): void
    {
        self::$times ??= fopen('times', 'a');
        fwrite(self::$times, sprintf("%.6f\n", microtime(true) - $data['moment']));
        $this->append($job, $data);
    }
}

function on_redis(Container $container): array
{
    $address = parse_url(getenv('BENCH_REDIS'));
    $container->instance('redis', new RedisManager($container, 'phpredis', [
        'default' => [
            'host' => $address['host'],
            'port' => $address['port'],
            'database' => (int) trim($address['path'] ?? '0', '/'),
        ],
    ]));

    return ['connection' => 'default'];
}

function on_beanstalkd(): array
{
    [$host, $port] = explode(':', getenv('BENCH_BEANSTALKD'));

    return ['host' => $host, 'port' => (int) $port];
}

function queues(): Manager
{
    $container = new Container;
    Container::setInstance($container);
    $container->instance('config', new Repository(['queue' => ['default' => CONNECTION, 'connections' => []]]));
    $container->instance('events', new Dispatcher($container));
    $own = CONNECTION === 'redis' ? on_redis($container) : on_beanstalkd();
    $queues = new Manager($container);
    $queues->addConnection($own + [
        'driver' => CONNECTION,
        'queue' => 'default',
        'retry_after' => 60,
        'block_for' => 5,
    ], CONNECTION);

    return $queues;
}
