// Progress engine of partial all-reduces over TCP: a thread that delivers a participant's messages without Python.
//
// The functions at the end are called by deeppool/execution/transports/native_tcp.py. One lock guards participant and
// connections; a caller sends its own messages at once, and the thread receives, answers and sends what is left.
#include <sys/eventfd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "peers.hpp"
#include "straggler_aware.hpp"

namespace deeppool {

constexpr uint32_t kWake = ~uint32_t{0};

double now() {  // the clock of Python's time.monotonic
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::unique_ptr<Participant> participant_of(int32_t rank, const Rule& rule, bool latest, Type type, size_t elements,
                                            std::vector<Step> steps) {
  if (rule.mode == Mode::straggler_aware && rule.ranks > 1)
    return std::make_unique<StragglerAware>(rank, rule, latest, type, elements);
  return std::make_unique<Participant>(rank, rule, latest, type, elements, std::move(steps));
}

class Engine {
 public:
  Engine(int32_t rank, const Rule& rule, bool latest, Type type, size_t elements, std::vector<Step> steps,
         const int32_t* fds)
      : rule_(rule), bytes_(elements * size_of(type)), epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        participant_(participant_of(rank, rule, latest, type, elements, std::move(steps))) {
    for (int32_t other = 0; other < rule.ranks; ++other)
      peers_.push_back(other == rank ? nullptr : std::make_unique<Peer>(fds[other], epoll_, other));
    if (epoll_ < 0 || wake_ < 0) {
      release();
      throw std::runtime_error("no file descriptor is left");
    }
    epoll_event event{EPOLLIN, {}};
    event.data.u32 = kWake;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
    // Signals are for Python's thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { progress(); });
    } catch (const std::system_error&) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      release();
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Engine() { release(); }

  // Adds a sum of gradients; ``arrives``: and waits for the open round if all others are received.
  void add(const char* gradients, int64_t count, bool arrives) {
    auto copy = std::make_shared<std::vector<char>>(gradients, gradients + bytes_);
    std::lock_guard<std::mutex> guard(lock_);
    if (arrives) participant_->submit(std::move(copy), now());
    else participant_->add(std::move(copy), count);
    flush_from_caller();
  }

  void finish() {
    std::lock_guard<std::mutex> guard(lock_);
    participant_->finish(now());
    flush_from_caller();
  }

  // Waits for a result; returns how many there are, -1 if none will come, -2 - rank if a rank has failed.
  int64_t wait(double seconds) {
    std::unique_lock<std::mutex> guard(lock_);
    auto done = [this] { return !participant_->unread.empty() || participant_->closed || failed_ >= 0; };
    changed_.wait_for(guard, std::chrono::duration<double>(seconds), done);
    if (!participant_->unread.empty()) return static_cast<int64_t>(participant_->unread.size());
    if (participant_->closed) return -1;
    return failed_ >= 0 ? -2 - failed_ : 0;
  }

  // Copies the first result that was not received; returns its round, -1 if there is none.
  int64_t take(int64_t* counts, char* total) {
    std::unique_lock<std::mutex> guard(lock_);
    if (participant_->unread.empty()) return -1;
    Result result = std::move(participant_->unread.front());
    participant_->unread.pop_front();
    participant_->applied = result.number + 1;
    guard.unlock();
    std::copy(result.counts.begin(), result.counts.end(), counts);
    if (result.total) std::memcpy(total, result.total->data(), bytes_);
    else std::memset(total, 0, bytes_);
    return result.number;
  }

  int64_t pending(char* total) {
    std::lock_guard<std::mutex> guard(lock_);
    if (participant_->pending) std::memcpy(total, participant_->pending->data(), bytes_);
    else std::memset(total, 0, bytes_);
    return participant_->pending_count;
  }

  // Completed rounds, received rounds, and whether the received ones hold all gradients of this rank.
  void state(int64_t* found) {
    std::lock_guard<std::mutex> guard(lock_);
    found[0] = participant_->completed;
    found[1] = participant_->applied;
    found[2] = participant_->accepted();
    found[3] = failed_;
  }

  // Sends what is left for at most some seconds, and nothing if the others are to end in an error.
  void stop(bool agreed, double seconds) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      bool in_order = agreed || participant_->closed;
      for (auto& peer : peers_)
        if (peer && in_order) {
          peer->post({Kind::closes, 0});
          peer->flush();
        }
      stopping_ = in_order ? now() + seconds : 0;
      wake();
    }
    thread_.join();
  }

 private:
  void progress() {
    std::vector<epoll_event> events(64);
    for (;;) {
      int timeout;
      {
        std::lock_guard<std::mutex> guard(lock_);
        double left = participant_->fires_at() - now();
        if (stopping_ >= 0) {
          if (now() >= stopping_ || !has_to_send()) return;
          left = std::min(left, stopping_ - now());
        }
        timeout = left == kNever ? -1 : static_cast<int>(std::ceil(std::clamp(left, 0.0, 1e6) * 1e3));
      }
      int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout);
      std::lock_guard<std::mutex> guard(lock_);
      int64_t completed = participant_->completed;
      for (int index = 0; index < count; ++index) serve(events[static_cast<size_t>(index)]);
      participant_->advance(now());
      flush();
      if (participant_->completed > completed || failed_ >= 0) changed_.notify_all();
    }
  }

  void serve(const epoll_event& event) {
    if (event.data.u32 == kWake) {
      uint64_t count;
      if (read(wake_, &count, sizeof count) < 0) return;  // woken already
      return;
    }
    auto source = static_cast<int32_t>(event.data.u32);
    Peer& peer = *peers_[static_cast<size_t>(source)];
    if (!peer.open || !(event.events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    peer.read(rule_, *participant_, [&](Message message) {
      if (message.kind == Kind::closes) peer.ended = true;
      else if (message.kind > Kind::closes) peer.end();  // it is no rank of this version
      else participant_->receive(source, std::move(message), now());
    });
    if (!peer.open && !peer.ended && !participant_->closed && failed_ < 0) failed_ = source;
  }

  void flush() {
    for (auto& [destination, message] : participant_->outbox) peers_[static_cast<size_t>(destination)]->post(message);
    participant_->outbox.clear();
    for (auto& peer : peers_)
      if (peer && peer->has_to_send()) peer->flush();
  }

  void flush_from_caller() {
    flush();
    // An arrival may have started a grace window, whose end the thread has to meet.
    if (participant_->fires_at() < kNever) wake();
  }

  void wake() {
    uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) return;  // it is awake
  }

  void release() {
    peers_.clear();
    if (epoll_ >= 0) close(epoll_);
    if (wake_ >= 0) close(wake_);
  }

  bool has_to_send() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer && peer->has_to_send(); });
  }

  Rule rule_;
  size_t bytes_;
  int epoll_, wake_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::unique_ptr<Participant> participant_;
  std::vector<std::unique_ptr<Peer>> peers_;
  int32_t failed_ = -1;
  double stopping_ = -1;
  std::thread thread_;
};

}  // namespace deeppool

using deeppool::Engine;

extern "C" {

// Returns null where the system has no thread or file descriptor left, which closes the connections.
// integers: rank, ranks, mode, quorum, staleness limit, synchronous every, latest, type; steps: kind and peer of each.
void* deeppool_start(const int32_t* integers, double grace, uint64_t seed, int64_t elements, const int32_t* steps,
                     int32_t step_count, const int32_t* fds) {
  deeppool::Rule rule{integers[1], static_cast<deeppool::Mode>(integers[2]), integers[3], integers[4], integers[5],
                      grace, seed};
  std::vector<deeppool::Step> mine;
  for (int32_t step = 0; step < step_count; ++step)
    mine.push_back({static_cast<deeppool::Step::What>(steps[2 * step]), steps[2 * step + 1]});
  try {
    return new Engine(integers[0], rule, integers[6] != 0, static_cast<deeppool::Type>(integers[7]),
                      static_cast<size_t>(elements), std::move(mine), fds);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void deeppool_add(void* engine, const char* gradients, int64_t count, int32_t arrives) {
  static_cast<Engine*>(engine)->add(gradients, count, arrives != 0);
}
void deeppool_finish(void* engine) { static_cast<Engine*>(engine)->finish(); }
int64_t deeppool_wait(void* engine, double seconds) { return static_cast<Engine*>(engine)->wait(seconds); }
int64_t deeppool_take(void* engine, int64_t* counts, char* total) {
  return static_cast<Engine*>(engine)->take(counts, total);
}
int64_t deeppool_pending(void* engine, char* total) { return static_cast<Engine*>(engine)->pending(total); }
void deeppool_state(void* engine, int64_t* found) { static_cast<Engine*>(engine)->state(found); }
void deeppool_stop(void* engine, int32_t agreed, double seconds) {
  static_cast<Engine*>(engine)->stop(agreed != 0, seconds);
  delete static_cast<Engine*>(engine);
}
int32_t deeppool_initiator(int32_t ranks, uint64_t seed, int64_t number) {
  deeppool::Rule rule{};
  rule.ranks = ranks;
  rule.seed = seed;
  return rule.initiator(number);
}
}
