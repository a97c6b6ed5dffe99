# Sidekiq's jobs, and where its Redis is.

require "sidekiq"

redis = { url: ENV.fetch("BENCH_REDIS") }
Sidekiq.configure_client { |config| config.redis = redis }
Sidekiq.configure_server { |config| config.redis = redis }
Sidekiq.logger.level = Logger::WARN
Redis.silence_deprecations = true # Debian's redis gem would warn at every command of Sidekiq's

WRITTEN = File.open("written", "a")
TIMES = File.open("times", "a")

class Append
  include Sidekiq::Worker

  def perform
    WRITTEN.syswrite(".")
    sleep(ENV["BENCH_SLEEPS"].to_f) if ENV["BENCH_SLEEPS"]
  end
end

class Since
  include Sidekiq::Worker

  def perform(moment)
    TIMES.syswrite(format("%.6f\n", Time.now.to_f - moment))
    WRITTEN.syswrite(".")
  end
end
