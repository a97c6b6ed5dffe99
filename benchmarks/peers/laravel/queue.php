<?php
// Laravel 8's queue, booted without an application around it, and its jobs: on Redis with phpredis,
// on beanstalkd with Pheanstalk where BENCH_BEANSTALKD says host and port, or in the database that
// BENCH_SQL names.

require 'Illuminate/autoload.php';

define('CONNECTION', getenv('BENCH_SQL') ? 'database' : (getenv('BENCH_BEANSTALKD') ? 'beanstalkd' : 'redis'));
if (CONNECTION === 'beanstalkd') {
    require 'Pheanstalk/autoload.php';
}

use Illuminate\Config\Repository;
use Illuminate\Container\Container;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Redis\RedisManager;

final class Jobs
{
    private static $written;
    private static $times;

    public function append($job, array $data): void
    {
        if (! self::$written) {
            self::$written = fopen('written', 'a');
            if (getenv('BENCH_GATE')) {
                self::pass_gate();
            }
        }
        fwrite(self::$written, '.');
        if ($seconds = getenv('BENCH_SLEEPS')) {
            sleep((int) $seconds);
        }
        $job->delete();
    }

    private static function pass_gate(): void
    {
        $gate = fopen('gate', 'a');
        fwrite($gate, '.');
        while (fstat($gate)['size'] < (int) getenv('BENCH_GATE')) {
            usleep(1000);
        }
        fclose($gate);
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

function database(Container $container): Database
{
    $address = parse_url(getenv('BENCH_SQL'));
    $database = new Database($container);
    $database->addConnection([
        'driver' => $address['scheme'] === 'postgresql' ? 'pgsql' : 'mysql',
        'host' => $address['host'],
        'port' => $address['port'],
        'database' => trim($address['path'], '/'),
        'username' => $address['user'],
        'password' => $address['pass'],
        'charset' => $address['scheme'] === 'postgresql' ? 'utf8' : 'utf8mb4',
        'prefix' => '',
    ]);
    $database->setAsGlobal();

    return $database;
}

function in_database(Container $container): array
{
    $container->instance('db', database($container)->getDatabaseManager());

    return ['connection' => null, 'table' => 'jobs'];
}

function queues(): Manager
{
    $container = new Container;
    Container::setInstance($container);
    $container->instance('config', new Repository(['queue' => ['default' => CONNECTION, 'connections' => []]]));
    $container->instance('events', new Dispatcher($container));
    $own = match (CONNECTION) {
        'redis' => on_redis($container),
        'beanstalkd' => on_beanstalkd(),
        'database' => in_database($container),
    };
    $queues = new Manager($container);
    $queues->addConnection($own + [
        'driver' => CONNECTION,
        'queue' => 'default',
        'retry_after' => 60,
        'block_for' => 5,
    ], CONNECTION);

    return $queues;
}
