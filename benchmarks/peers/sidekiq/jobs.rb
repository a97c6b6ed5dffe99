# Sidekiq's jobs, and where its Redis is.

require "sidekiq"

redis = { url: ENV.fetch("BENCH_REDIS") }
Sidekiq.configure_client { |config| config.redis = redis }
Sidekiq.configure_server { |config| config.redis = redis }
Sidekiq.logger.level = Logger::WARN
Redis.silence_deprecations = true # Debian's redis gem would warn at every command of Sidekiq's

WRITTEN = File.open("written", "a")
TIMES = File.open("times", "a")
WAITS = ENV["BENCH_WAITS"].to_f
COMPUTES = ENV["BENCH_COMPUTES"].to_f

# Which each hundredth is; threads count together.
class Started
  LOCK = Mutex.new
  @count = 0

  def self.next
    LOCK.synchronize { @count += 1 }
  end
end

def compute
  clock = Process::CLOCK_THREAD_CPUTIME_ID
  ends = Process.clock_gettime(clock) + COMPUTES
  nil while Process.clock_gettime(clock) < ends
end

class Append
  include Sidekiq::Worker

  def perform
    sleep(WAITS) if WAITS.positive?
    WRITTEN.syswrite(".")
    sleep(ENV["BENCH_SLEEPS"].to_f) if ENV["BENCH_SLEEPS"]
  end
end

class Since
  include Sidekiq::Worker

  def perform(moment)
    late = Time.now.to_f - moment
    if COMPUTES.zero?
      TIMES.syswrite(format("%.6f\n", late))
    elsif (Started.next % 100).positive?
      TIMES.syswrite(format("%.6f %.6f\n", late, moment))
    else
      TIMES.syswrite(format("- %.6f\n", moment))
      compute
    end
    WRITTEN.syswrite(".")
  end
end
