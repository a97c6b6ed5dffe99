<?php

/*
 * What a Laravel application's queue needs, booted from Debian's php-laravel-framework.
 *
 * The first argument of a script is JSON: "driver" ("redis", "beanstalkd" or "database"), "port", for
 * Redis also "prefix" or the ports of a "cluster", for a database "database" (a connection of
 * config/database.php), "ledger", "provider" (a script), and under "queue" keys of the connection in config/queue.php
 * ("retry_after", ...).
 */

use Illuminate\Bus\BusServiceProvider;
use Illuminate\Cache\ArrayStore;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository as CacheRepository;
use Illuminate\Container\Container;
use Illuminate\Contracts\Container\Container as ContainerContract;
use Illuminate\Contracts\Events\Dispatcher as EventsContract;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Events\Dispatcher;
use Illuminate\Queue\Capsule\Manager as Queue;
use Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider;
use Illuminate\Redis\RedisManager;

error_reporting(E_ALL & ~E_DEPRECATED);
set_error_handler(function ($level, $message, $file, $line) {
    if (error_reporting() & $level) {
        throw new ErrorException($message, 0, $level, $file, $line);
    }
});

$given = json_decode($argv[1] ?? '{}', true, 512, JSON_THROW_ON_ERROR);
$driver = $given['driver'] ?? 'redis';

if ($driver === 'redis' && ! extension_loaded('redis')) {
    exit("there is no phpredis here\n");
}
if ($driver === 'database' && ! extension_loaded("pdo_{$given['database']['driver']}")) {
    exit("there is no pdo_{$given['database']['driver']} here\n");
}
foreach (['Bus', 'Cache', 'Database', 'Events', 'Queue', 'Redis'] as $component) {
    require_once "Illuminate/$component/autoload.php";
}
if ($driver === 'beanstalkd') {
    require_once 'Pheanstalk/autoload.php';
}

$app = new class extends Container {
    public function isDownForMaintenance()
    {
        return false;
    }

    public function environment(...$environments)
    {
        return $environments ? false : 'testing';
    }
};
Container::setInstance($app);
$app->instance(ContainerContract::class, $app);
$app->instance('events', new Dispatcher($app));
$app->alias('events', EventsContract::class);
$node = fn ($port) => ['host' => '127.0.0.1', 'port' => $port];
$app->singleton('redis', fn () => new RedisManager($app, 'phpredis', [
    'options' => ['prefix' => $given['prefix'] ?? '', 'cluster' => 'redis'],
] + (isset($given['cluster'])
    ? ['clusters' => ['default' => array_map($node, $given['cluster'])]]
    : ['default' => $node($given['port'] ?? 6379) + ['database' => 0]])));
$app->singleton('cache.store', fn () => new CacheRepository(
    $driver === 'redis' ? new RedisStore($app['redis']) : new ArrayStore
));

if ($driver === 'database') {
    $database = new Database($app);
    $database->addConnection($given['database']);
    $app->instance('db', $database->getDatabaseManager());
    $app->singleton('queue.failer', fn () => new DatabaseUuidFailedJobProvider(
        $app['db'], null, 'failed_jobs'
    ));
}

$queue = new Queue($app);
$own = match ($driver) {
    'redis' => ['connection' => 'default', 'block_for' => null],
    'beanstalkd' => ['host' => '127.0.0.1', 'port' => $given['port'] ?? 11300, 'block_for' => 0],
    'database' => ['connection' => null, 'table' => 'jobs'],
};
$queue->addConnection(($given['queue'] ?? []) + $own + [
    'driver' => $driver, 'queue' => 'default', 'retry_after' => 90,
], $driver);
$app['config']['queue.default'] = $driver;
$queue->setAsGlobal();
$app->instance('queue', $queue->getQueueManager());
$app->alias('queue', Illuminate\Contracts\Queue\Factory::class);
(new BusServiceProvider($app))->register();

/** Add a line to the ledger, in one write. */
function note(string $event, array $more): void
{
    global $given;
    $entry = ['side' => 'php', 'event' => $event, 'pid' => getmypid(), 'time' => microtime(true)] + $more;
    $line = json_encode($entry, JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION | JSON_THROW_ON_ERROR);
    file_put_contents($given['ledger'], $line."\n", FILE_APPEND);
}

require __DIR__.'/handlers.php';
if (isset($given['provider'])) {
    Illuminate\Support\Facades\Facade::setFacadeApplication($app);
    require $given['provider'];
}
