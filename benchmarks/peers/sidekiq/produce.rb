# Dispatches Sidekiq's jobs: `ruby produce.rb many 5000`, as benchmarks/apps/producing.py does.

require "json"
require_relative "jobs"

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

what, count, seed = ARGV[0], ARGV[1].to_i, ARGV[2].to_i
each_second = seed
Append.perform_async
rate = 0
if what == "many"
  began = now
  count.times { Append.perform_async }
  rate = count / (now - began)
elsif what == "spaced"
  chance = Random.new(seed)
  count.times do
    sleep(chance.rand(0.1..0.3))
    Since.perform_async(Time.now.to_f)
  end
elsif what == "paced"
  began = now
  count.times do |number|
    sleep([0, began + number / each_second.to_f - now].max)
    Since.perform_async(Time.now.to_f)
  end
end
puts JSON.generate(rate)
