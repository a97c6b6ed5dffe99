<?php

/*
 * Runs a command of Laravel's own, as artisan does:
 *
 *     php artisan.php '{"driver": "database", "database": {...}}' queue:retry all
 *
 * Besides these, "migrate" makes the tables of the stubs that `artisan queue:table` and
 * `artisan queue:failed-table` would copy into an application.
 */

require __DIR__.'/boot.php';

use Illuminate\Queue\Console;
use Illuminate\Support\Facades\Facade;
use Symfony\Component\Console\Input\ArgvInput;
use Symfony\Component\Console\Output\StreamOutput;

require_once 'Illuminate/Console/autoload.php';

[, , $name] = $argv;
if ($name === 'migrate') {
    Facade::setFacadeApplication($app);
    $stubs = dirname((new ReflectionClass(Console\TableCommand::class))->getFileName()).'/stubs';
    foreach (['jobs', 'failed_jobs'] as $table) {
        $class = 'Create'.ucfirst(strtr($table, ['_' => ''])).'Table';
        $stub = strtr(file_get_contents("$stubs/$table.stub"), [
            '{{tableClassName}}' => substr($class, 6, -5), '{{table}}' => $table,
        ]);
        eval(substr($stub, strlen('<?php')));
        (new $class)->up();
    }
    exit(0);
}

$command = match ($name) {
    'queue:clear' => new Console\ClearCommand,
    'queue:failed' => new Console\ListFailedCommand,
    'queue:flush' => new Console\FlushFailedCommand,
    'queue:forget' => new Console\ForgetFailedCommand,
    'queue:retry' => new Console\RetryCommand,
};
$command->setLaravel($app);
exit($command->run(new ArgvInput(array_slice($argv, 2)), new StreamOutput(STDOUT)));
