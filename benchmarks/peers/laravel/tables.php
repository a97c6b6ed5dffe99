<?php
// Makes the table that `queue:table` writes a migration for.

require __DIR__.'/queue.php';

use Illuminate\Database\Capsule\Manager as Database;

queues();
Database::schema()->create('jobs', function ($table) {
    $table->bigIncrements('id');
    $table->string('queue')->index();
    $table->longText('payload');
    $table->unsignedTinyInteger('attempts');
    $table->unsignedInteger('reserved_at')->nullable();
    $table->unsignedInteger('available_at');
    $table->unsignedInteger('created_at');
});
